"""Who runs where, and what happens when one dies. Ray lives here."""
