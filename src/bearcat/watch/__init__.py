"""Machines over time: recordings as they come, what is usual for each point, and alarms at a stated rate."""
