"""Ways of looking at profiles: layers, kernels, modules and floors as tables, boxes, rooflines and a trace.

Each table is a file that says its columns, its rows and what they come to; the formats are those of every table. They
draw profiles, not records, and so are no views of the registry. What holds for these holds here too: nothing is
printed, and the same profiles give the same text.
"""
