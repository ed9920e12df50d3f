"""Properties files of xmlBlaster's replication, turned into pipeline files."""
