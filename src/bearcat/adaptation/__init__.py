"""One adaptation: what is requested, the plan, the runs that are trained, and their record."""
