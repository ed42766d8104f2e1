"""`specc distill`: drafts for one target, trained on the target's own answers."""
