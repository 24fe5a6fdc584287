"""What is held to be a fault: rules on what was measured, each with the events that show it."""
