"""What the HTML pages of the gate and of the bench share: SVG plots, the style sheet, the document around a
page.
"""
