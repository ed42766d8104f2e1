"""What is measured or gathered before the plan: token streams for the judges."""
