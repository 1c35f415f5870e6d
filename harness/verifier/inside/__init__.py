"""Programs that run inside the grading sandbox. They are shown there as files and never imported here."""
