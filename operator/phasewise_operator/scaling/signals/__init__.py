"""From metrics to the signals of a service. All pure: exposition -> history -> build."""
