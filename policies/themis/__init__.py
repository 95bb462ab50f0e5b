"""Themis: finish-time fairness by auctions (Mahajan et al., NSDI 2020). Pure modules, and no policy yet."""
