"""The bundle: the folder that ships. Written whole or not at all; read back with format, sizes and hashes
checked.

tables      the binary tables of a bundle: texts of ids, calibration ids, draft ids
manifest    manifest.json: read, checked and formatted; its digest
contents    what the manifest says of a plan
writer      a bundle written and put in place in one step
"""
