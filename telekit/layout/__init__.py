"""How a job is split over devices."""
