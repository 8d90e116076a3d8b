CASE WHEN m.{places/expired} OR {subscriptions/withdrawn} THEN 'expired' END
