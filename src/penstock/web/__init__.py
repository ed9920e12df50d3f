"""The page that shows pipelines at work, and lets a person act on their error queues."""
