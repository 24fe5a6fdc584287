"""How much is trained: sequence, batch, precision, optimizer."""
