"""What bytes are made of: lines, frames, JSON values, paths, encodings, limits, protocol errors."""
