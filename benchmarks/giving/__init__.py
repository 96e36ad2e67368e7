"""What members without a policy are worth to one that trains."""
