"""Check of a user's data before the first iteration: images, masks, boxes, classes and metrics."""
