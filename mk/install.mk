# # filled in by the installer fragment
