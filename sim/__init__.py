"""The simulation: clock, scheduler, step time, records. It writes no files and draws nothing."""
