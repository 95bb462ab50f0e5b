"""For the admin who installs metasched: what is wrong here, how to mend it, and a configuration to begin with."""
