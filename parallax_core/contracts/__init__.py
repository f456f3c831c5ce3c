"""The values and protocols between core and plugins: dataclasses and typing only, no behaviour."""
