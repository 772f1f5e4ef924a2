"""What a dialect declares and how it is asked: its faces, its mapping, one step of its codec."""
