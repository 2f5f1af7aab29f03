"""What runs cost: intervals and prices in, a ledger and a chargeback out. Pure: no clock, no cluster, no database."""
