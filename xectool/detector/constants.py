"""Numbers of the liquid-xenon calorimeter: lengths in cm, angles in degrees, each with its origin.

Origins are short keys, explained in ``docs/physics.md``:

* ``table``: fits the older system's sensor table to its print rounding (4.9e-4 cm);
* ``design``: the MEG II design report, A. M. Baldini et al., Eur. Phys. J. C 78 (2018) 380;
* ``derived``: follows from other numbers of this file;
* ``ours``: a bound of plausible size, to tell damage by.

Azimuth ``phi`` is measured from the -x axis towards +y, so that ``phi = 0`` is the middle of the detector.
"""

from __future__ import annotations

import math

# Sensors --------------------------------------------------------------------------------------------------
NUM_SENSORS = 4760  # design: 4092 SiPMs on the inner face and 668 PMTs on the other five
NUM_SIPMS = 4092  # design: 93 rows x 44 columns
DEAD_VALUE = 1.0e10  # older system: "unknown" in every branch, for dead channels and invalid times
UNKNOWN_ABOVE = 9.0e9  # older system: larger absolute values mean DEAD_VALUE, whatever float32 made of it
LARGEST_NPHO = 2.0e6  # ours: twice what simulate gives all sensors at 60 MeV; more in one is damage
LARGEST_TIME_S = 1e-5  # ours: an event lasts microseconds; more is damage or another unit
DEAD_EVENTS = 0.9  # ours: share of the events in which a dead sensor has no reading
LARGEST_LEGAL = 1.1e10  # ours: beyond it no rounding of DEAD_VALUE: UNKNOWN_ABOVE leaves the same room below

# Inner face -----------------------------------------------------------------------------------------------
INNER_SHAPE = (93, 44)  # design: rows along phi (from the top), columns along z (from upstream)
INNER_WALL_RADIUS_CM = 64.84  # older system: radius of the inner wall
SIPM_HEIGHT_CM = 0.13  # older system: height of the SiPM package above the wall
REFERENCE_RADIUS_CM = INNER_WALL_RADIUS_CM + SIPM_HEIGHT_CM  # derived: 64.97, where w = 0
INNER_SPAN_DEG = 125.52  # table: azimuth covered by the 93 rows
INNER_PITCH_DEG = INNER_SPAN_DEG / INNER_SHAPE[0]  # derived: 1.5304 cm along v
INNER_PITCH_Z_CM = 1.5097727  # table

# Outer face -----------------------------------------------------------------------------------------------
OUTER_RADIUS_CM = 106.27  # table: entrance windows of the PMTs
OUTER_SHAPE = (24, 9)  # design: coarse grid, 24 azimuths x 9 positions along z
OUTER_FIRST = NUM_SIPMS  # table: PMTs are numbered after the SiPMs, the coarse outer grid first
PMT_PITCH_DEG = 5.23  # table: azimuth between rows of the outer and of the end faces
OUTER_PITCH_Z_CM = 10.356  # table
OUTER_CENTER_SHAPE = (6, 5)  # table: 6 azimuths x 5 z that replace 4 x 3 cells of the coarse grid
OUTER_CENTER_PITCH_DEG = PMT_PITCH_DEG * 4 / 6  # derived: six rows in the room of four
OUTER_CENTER_PITCH_Z_CM = 6.2  # table

# End faces (upstream at z < 0, downstream at z > 0) -----------------------------------------------------------
END_SHAPE = (24, 6)  # design: 24 azimuths x 6 positions along the slope
US_FIRST = 4308  # table
DS_FIRST = 4452  # table
END_FIRST_RADIUS_CM = 69.53  # table
END_PITCH_RADIUS_CM = 6.684  # table
END_FIRST_Z_CM = 35.1547  # table
END_PITCH_Z_CM = 2.3369  # table
END_PITCH_CM = math.hypot(END_PITCH_RADIUS_CM, END_PITCH_Z_CM)  # derived: 7.0807 along the slope

# Top and bottom faces ---------------------------------------------------------------------------------------
HEX_ROW_LENGTHS = (11, 12, 11, 12, 13, 14)  # table: staggered rows, from the inner to the outer side
NUM_HEX = sum(HEX_ROW_LENGTHS)  # derived: 73
TOP_FIRST = 4596  # table
BOTTOM_FIRST = 4669  # table
HEX_PHI_DEG = INNER_SPAN_DEG / 2  # derived: the two faces close the span of the inner face
HEX_FIRST_RADIUS_CM = 68.27  # table
HEX_PITCH_RADIUS_CM = 6.91  # table
HEX_PITCH_Z_CM = 6.12  # table

# Sensitive areas --------------------------------------------------------------------------------------------
SIPM_CHIP_CM = 0.59  # older system: side of one of the four chips (design: 12 x 12 mm2 in all)
SIPM_CHIP_GAP_CM = 0.05  # older system: gap between chips
SIPM_AREA_CM2 = 4 * SIPM_CHIP_CM**2  # derived: 1.39
PMT_RADIUS_CM = 2.25  # design: 45 mm photocathode; the older system's Python used 3.81 by mistake
PMT_AREA_CM2 = math.pi * PMT_RADIUS_CM**2  # derived: 15.9

# Fiducial volume ----------------------------------------------------------------------------------------------
FIDUCIAL_U_CM = 23.9  # older system: |u| limit of the analysis acceptance
FIDUCIAL_V_CM = 67.9  # older system: |v| limit
