"""Values that all other rooms share: the observed state, actions, conditions, names and defaults. All are pure."""
