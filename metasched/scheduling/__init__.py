"""One round and its plan: the policy is asked, its decision checked and placed, missing actions are named. Pure."""
