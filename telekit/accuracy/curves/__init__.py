"""Loss curves: errors, drift, spikes, limits of several standards, the suspect; the phases of an alignment."""
