"""What every other package stands on: the records, the policy contract, errors, and seeded random numbers."""
