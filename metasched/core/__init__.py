"""The basis of all packages: records, retention predicates, the policy contract, errors, resumable random numbers."""
