"""Messages about recorded events: to webhooks, to Slack, and by Apprise as mail and otherwise; a process of its own."""
