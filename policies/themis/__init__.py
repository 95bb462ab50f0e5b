"""Themis: finish-time fairness by auctions (Mahajan et al., NSDI 2020)."""
