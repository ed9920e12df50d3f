"""DbWatcher messages, in a folder or a topic, as transactions that apply takes.

`folder` and `topic` are where messages lie, `pieces` says what one of them asks for, `index` puts transactions
together, `source` is what a pipeline follows.
"""
