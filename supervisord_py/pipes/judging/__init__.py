"""What an agent said and how an execution ended: stream parsers, classifier, outcome, retries; pure."""
