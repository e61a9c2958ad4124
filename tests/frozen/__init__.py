"""What the project was at two commits, as data, while much of it is rewritten: what is gone, and what differs.

``names_0.3.0.json`` is of release 0.3.0, commit cf688ed0, and everything else of commit 35ee0772. The data do not
change any more. The folder goes when the rewriting ends.
"""
