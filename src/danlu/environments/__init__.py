"""Long-running environments: start, enter, inspect, stop and remove them."""
