"""Published rows against the models: what is reproduced, by how much, and what is not and why."""
