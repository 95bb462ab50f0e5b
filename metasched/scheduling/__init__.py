"""A round and its plan: ask the policy, check and place its decision, and find the missing actions. Pure."""
