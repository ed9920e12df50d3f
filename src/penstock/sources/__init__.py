"""Where changes come from: each folder reads one kind of capture and yields the change stream."""
