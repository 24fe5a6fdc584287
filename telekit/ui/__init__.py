"""Charts, widgets and panels; the only place that draws."""
