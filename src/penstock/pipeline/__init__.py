"""What a pipeline file can do, whatever its databases are: plan, set up, run, look, verify, take down."""
