"""The engine dialect: tasks whose SSE frames are stamped with milliseconds."""
