"""Queue forecasts: the start and the end of each live job as ranges, by repeated simulation of the live queue."""
