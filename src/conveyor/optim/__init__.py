"""Update rules, learning-rate schedules and averages of weights."""
