"""The writing steps of a poll before it decides: new jobs are recorded and held, runs and reports are recorded."""
