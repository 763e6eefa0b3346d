"""From metrics pages to what is known of a service. All pure: pages -> history -> compute."""
