"""How often the real decision code accepts a change of a known true gain, under the noise that a real GPU showed.

Of `core` it uses the decision and the statistics as they are; nothing of a campaign imports this room.
"""
