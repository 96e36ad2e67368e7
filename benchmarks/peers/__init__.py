"""Third-party peers, each installed in a venv of its own and never imported into ours."""
