"""XDS documents in a folder, in the order of their numbers, as transactions that apply takes.

`documents` reads the folder, `transactions` makes changes of what documents say, `source` is what a pipeline follows.
"""
