"""Where and how testgrad runs: the installer, the services, run configs, images, schedules."""
