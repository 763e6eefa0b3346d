"""`make rollouts`: every kind of rollout on a real cluster, under eight requests at once, of which none may fail."""
