"""Pipeline schedules, their simulation and their bubbles."""
